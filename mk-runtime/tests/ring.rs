//! The ring of commands under every order that release and acquire allow.
//!
//! A model of memory in the manner of C++20 [atomics.order]: each word has the list of its values in modification order; a thread's *view*
//! says of each word which value it must at least see; a load takes any value from there on, and an acquire of a released value
//! takes over the view of its writer. All interleavings and all choices of loads are explored. A thread is run again from its begin for
//! each step, with the answers that its loads had, so that the ring's own code is what is explored.

use mk_runtime::proxy::ring::{Consumer, Producer, Shape, Words};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

type View = Vec<usize>;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Value {
    value: u32,
    released: Option<View>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Thread {
    /// Answers to its loads so far.
    loads: Vec<u32>,
    stores: usize,
    view: View,
    done: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    memory: Vec<Vec<Value>>,
    threads: Vec<Thread>,
}

/// What a thread does next.
enum Next {
    Load(usize, Ordering),
    Store(usize, u32, Ordering),
    /// It found nothing to do, and would try again.
    Again,
    Done,
}

/// Answers what a thread has done, and stops it at what it does next.
struct Replay<'a> {
    thread: &'a Thread,
    loads: Cell<usize>,
    stores: Cell<usize>,
    next: RefCell<Option<Next>>,
}

struct Stop;

impl Replay<'_> {
    fn stop(&self, next: Next) -> ! {
        *self.next.borrow_mut() = Some(next);
        resume_unwind(Box::new(Stop));
    }

    /// The other side has to do something first.
    fn again(&self) -> ! {
        self.stop(Next::Again)
    }
}

impl Words for Replay<'_> {
    fn load(&self, at: usize, order: Ordering) -> u32 {
        let n = self.loads.get();
        match self.thread.loads.get(n) {
            Some(value) => {
                self.loads.set(n + 1);
                *value
            }
            None => self.stop(Next::Load(at, order)),
        }
    }

    fn store(&self, at: usize, value: u32, order: Ordering) {
        let n = self.stores.get();
        if n == self.thread.stores {
            self.stop(Next::Store(at, value, order));
        }
        self.stores.set(n + 1);
    }
}

type Body<'a> = &'a dyn Fn(&Replay<'_>);

fn next(thread: &Thread, body: Body<'_>) -> Next {
    let replay =
        Replay { thread, loads: Cell::new(0), stores: Cell::new(0), next: RefCell::new(None) };
    match catch_unwind(AssertUnwindSafe(|| body(&replay))) {
        Ok(()) => Next::Done,
        Err(stopped) if stopped.is::<Stop>() => replay.next.take().expect("a reason"),
        Err(failed) => resume_unwind(failed),
    }
}

/// Explores all runs of the bodies. Returns the number of states; panics for a state that cannot go on.
fn explore(words: usize, bodies: &[Body<'_>]) -> usize {
    let zero = Value { value: 0, released: None };
    let thread = Thread { loads: Vec::new(), stores: 0, view: vec![0; words], done: false };
    let first = State { memory: vec![vec![zero]; words], threads: vec![thread; bodies.len()] };
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        let mut goes_on = state.threads.iter().all(|t| t.done);
        for (i, body) in bodies.iter().enumerate().filter(|(i, _)| !state.threads[*i].done) {
            let mut add = |new: State| {
                goes_on = true;
                if seen.insert(new.clone()) {
                    open.push(new);
                }
            };
            match next(&state.threads[i], body) {
                // A later look is a run in which this one was later.
                Next::Again => {}
                Next::Done => {
                    let mut new = state.clone();
                    new.threads[i].done = true;
                    add(new);
                }
                Next::Store(at, value, order) => {
                    let mut new = state.clone();
                    let thread = &mut new.threads[i];
                    thread.stores += 1;
                    thread.view[at] = new.memory[at].len();
                    let released = (order == Release).then(|| thread.view.clone());
                    new.memory[at].push(Value { value, released });
                    add(new);
                }
                Next::Load(at, order) => {
                    for n in state.threads[i].view[at]..state.memory[at].len() {
                        let mut new = state.clone();
                        let Value { value, released } = &state.memory[at][n];
                        let thread = &mut new.threads[i];
                        thread.loads.push(*value);
                        thread.view[at] = n;
                        if let (Acquire, Some(view)) = (order, released) {
                            for (mine, theirs) in thread.view.iter_mut().zip(view) {
                                *mine = (*mine).max(*theirs);
                            }
                        }
                        // A look that finds nothing is no step.
                        if !matches!(next(&new.threads[i], body), Next::Again) {
                            add(new);
                        }
                    }
                }
            }
        }
        assert!(goes_on, "both wait for each other");
    }
    seen.len()
}

/// Two words of data and the number.
fn shape(size: u32) -> Shape {
    Shape { entry: 3, size }
}

fn produce(words: &Replay<'_>, size: u32, commands: u32) {
    let mut producer = Producer::new(shape(size));
    for n in 0..commands {
        if !producer.push(words, &[100 + n, 200 + n, 0]) {
            words.again();
        }
    }
}

/// A push or a look that found nothing is followed by the same one again, as loops do.
fn consume(words: &impl Words, again: &dyn Fn() -> bool, size: u32, commands: u32) {
    let mut consumer = Consumer::new(shape(size));
    for n in 0..commands {
        let mut command = [0; 3];
        if !consumer.peek(words, &mut command) && again() {
            return;
        }
        assert_eq!(command, [100 + n, 200 + n, n + 1], "a torn command");
        consumer.release(words);
    }
}

#[test]
fn no_order_tears_a_command_or_stops_the_ring() {
    for (size, commands) in [(1, 3), (2, 4), (4, 3)] {
        let producer = |words: &Replay<'_>| produce(words, size, commands);
        let consumer = |words: &Replay<'_>| consume(words, &|| words.again(), size, commands);
        let states = explore(shape(size).words(), &[&producer, &consumer]);
        assert!(states > 30, "{states} states are too few");
    }
}

/// Weakens what the ring asks for.
struct Weak<'a, 'b>(&'a Replay<'b>, fn(Ordering) -> Ordering);

impl Words for Weak<'_, '_> {
    fn load(&self, at: usize, order: Ordering) -> u32 {
        self.0.load(at, (self.1)(order))
    }

    fn store(&self, at: usize, value: u32, order: Ordering) {
        self.0.store(at, value, (self.1)(order));
    }
}

/// The model finds a ring whose orders are too weak, and one that does not wait.
#[test]
fn weaker_rings_are_found() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let tears = |size: u32, weak: fn(Ordering) -> Ordering| {
        let producer = |words: &Replay<'_>| produce(words, size, 3);
        let consumer = |words: &Replay<'_>| {
            consume(&Weak(words, weak), &|| words.again(), size, 3);
        };
        catch_unwind(AssertUnwindSafe(|| explore(shape(size).words(), &[&producer, &consumer])))
            .is_err()
    };
    let relaxed_acquire = tears(2, |o| if o == Acquire { Relaxed } else { o });
    // Too early a release of a place shows where the consumer reads behind it.
    let early = {
        let producer = |words: &Replay<'_>| produce(words, 1, 3);
        let consumer = |words: &Replay<'_>| {
            let mut consumer = Consumer::new(shape(1));
            for n in 0..3 {
                if words.load(5, Acquire) != n + 1 {
                    words.again();
                }
                consumer.release(words);
                assert_eq!(words.load(3, Relaxed), 100 + n, "a torn command");
            }
        };
        catch_unwind(AssertUnwindSafe(|| explore(6, &[&producer, &consumer]))).is_err()
    };
    std::panic::set_hook(hook);
    assert!(relaxed_acquire, "a consumer that does not acquire");
    assert!(early, "a consumer that releases before it reads");
}
