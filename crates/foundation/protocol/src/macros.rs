//! Macros for types of one shape, so that each of their rules is written once.

/// An enum on the wire whose unknown values are accepted and become `Unknown`.
///
/// ComputeHorde adds values between releases; a value that this version does not know must not make the whole message
/// unreadable.
macro_rules! open_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        pub enum $name {
            /// A value that this version does not know, or the literal `unknown`.
            #[default]
            Unknown,
            $($(#[$vmeta])* $variant),+
        }

        impl $name {
            /// Every value, `Unknown` first, in the order of the wire's own definition.
            pub const ALL: &'static [Self] = &[Self::Unknown, $(Self::$variant),+];

            /// The text on the wire.
            pub fn as_str(self) -> &'static str {
                match self { Self::Unknown => "unknown", $(Self::$variant => $text),+ }
            }

            /// Reads the text of the wire; anything unknown is [`Self::Unknown`].
            pub fn from_wire(text: &str) -> Self {
                match text { $($text => Self::$variant,)+ _ => Self::Unknown }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> { s.serialize_str(self.as_str()) }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(d)?;
                Ok(Self::from_wire(&text))
            }
        }
    };
}

/// Serialises through `Display` and reads through `FromStr`: the text form is the only form on the wire.
macro_rules! serde_as_text {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// A field that always holds the same text: part of a message's shape, not of its content.
macro_rules! constant_text {
    ($(#[$meta:meta])* $name:ident = $text:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct $name;

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> { s.serialize_str($text) }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(d)?;
                if text == $text { Ok(Self) } else { Err(serde::de::Error::custom(format!("expected {:?}, got {text:?}", $text))) }
            }
        }
    };
}

pub(crate) use {constant_text, open_enum, serde_as_text};
