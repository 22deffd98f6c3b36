//! Catalogues of errors.

/// A catalogue of errors: of each what it is, what it says, and its fields with what they are. It becomes an enum that
/// derives `thiserror::Error`, of which the crate that asks for it has to know. Behind `from` stands an error that is
/// passed on as it is.
#[macro_export]
macro_rules! errors {
    ($(#[$meta:meta])* $name:ident {$(
        $(#[$doc:meta])*
        $error:ident $(($($says:tt)*))?
            $({ $($(#[$field_doc:meta])* $field:ident: $of:ty $(= $is:literal)?,)* })? $(= ($($held:tt)*))? $(from $cause:ty)?,
    )*}) => {
        $(#[$meta])*
        #[derive(thiserror::Error)]
        pub enum $name {$(
            $(#[$doc])*
            $(#[error($($says)*)])?
            $(#[doc = concat!("[`", stringify!($cause), "`].")] #[error(transparent)])?
            $error $((#[from] $cause))? $({ $($(#[$field_doc])* $(#[doc = concat!($is, ".")])? $field: $of,)* })? $(($($held)*))?,
        )*}
    };
}
