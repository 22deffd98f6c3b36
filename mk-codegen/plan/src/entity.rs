//! Entity ids and the arenas that hold entities. The `Display` of an id is its name in the text format.

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, Unexpected},
};
use std::{borrow::Cow, fmt, marker::PhantomData, ops};

/// A typed index into an [`Arena`].
pub trait Entity: Copy + Eq + fmt::Display {
    /// Prefix of the id in the text format.
    const PREFIX: &'static str;
    /// Wraps an index.
    fn new(index: usize) -> Self;
    /// The index.
    fn index(self) -> usize;
}

macro_rules! entity {
    ($(#[$meta:meta])* $name:ident, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl Entity for $name {
            const PREFIX: &'static str = $prefix;
            fn new(index: usize) -> Self {
                $name(u32::try_from(index).unwrap_or(u32::MAX))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <Cow<'_, str>>::deserialize(d)?;
                let digits = text.strip_prefix($prefix).and_then(|d| d.parse::<u32>().ok());
                match digits.filter(|n| *n < u32::MAX) {
                    Some(n) => Ok($name(n)),
                    None => {
                        let what = concat!("an id such as ", $prefix, "0");
                        Err(D::Error::invalid_value(Unexpected::Str(&text), &what))
                    }
                }
            }
        }
    };
}

entity!(
    /// A dimension symbol, such as `M`.
    DimId, "dim");
entity!(
    /// A memory buffer.
    BufId, "buf");
entity!(
    /// An array of signal words.
    SigId, "sig");
entity!(
    /// A task family.
    FamId, "fam");
entity!(
    /// A table of integers that index expressions look up.
    TabId, "tab");
entity!(
    /// A role: a contiguous range of CTAs.
    RoleId, "role");
entity!(
    /// A synchronisation edge: a wait, a post, or an edge inside a leaf. One emitted primitive (or pair) each.
    EdgeId, "e");

/// Entities of one kind, in order of their ids.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Arena<K, V> {
    items: Vec<V>,
    #[serde(skip)]
    key: PhantomData<K>,
}

impl<K: Entity, V> Arena<K, V> {
    /// An arena with nothing in it.
    pub fn new() -> Self {
        Arena { items: Vec::new(), key: PhantomData }
    }
    /// Adds an entity and names it.
    pub fn push(&mut self, value: V) -> K {
        self.items.push(value);
        K::new(self.items.len() - 1)
    }
    /// The id that the next [`push`](Self::push) will give.
    pub fn next_id(&self) -> K {
        K::new(self.items.len())
    }
    /// The entity, if there is one of that id.
    pub fn get(&self, id: K) -> Option<&V> {
        self.items.get(id.index())
    }
    /// Number of entities.
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// Ids and entities, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
    /// Ids and entities, in order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.items.iter_mut().enumerate().map(|(i, v)| (K::new(i), v))
    }
    /// Ids, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.items.len()).map(K::new)
    }
    /// Entities, in order.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator {
        self.items.iter()
    }
}

impl<K: Entity, V> Default for Arena<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Entity, V: fmt::Debug> fmt::Debug for Arena<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.items).finish()
    }
}

/// Indexing is for ids that a validated plan holds ([`super::Plan::check_structure`]).
impl<K: Entity, V> ops::Index<K> for Arena<K, V> {
    type Output = V;
    fn index(&self, id: K) -> &V {
        &self.items[id.index()]
    }
}

impl<K: Entity, V> ops::IndexMut<K> for Arena<K, V> {
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.items[id.index()]
    }
}
