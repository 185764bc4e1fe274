//! Writes canonical JSON: a tree of values, which always has a text, or any value without a tree of it in memory.
//!
//! A struct's fields are written in the order in which serde gives them, and are sorted afterwards if they need it.

use std::fmt::{self, Write as _};

use serde::ser::{
    Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use serde_json::Value;

use super::{Separators, python_float, write_string};

/// A value has no JSON form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value has no JSON form: {0}")]
pub struct CanonicalError(String);

impl serde::ser::Error for CanonicalError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

type Result<T> = std::result::Result<T, CanonicalError>;

fn no_key() -> CanonicalError {
    CanonicalError("a key is no text".to_owned())
}

/// The text so far, in ASCII.
#[derive(Debug)]
pub(super) struct CanonicalWriter {
    out: String,
    separators: Separators,
    /// The text of the last value that was written through `Display`.
    shown: String,
}

/// The items of an array that is being written.
pub(super) struct ArrayWriter<'a> {
    writer: &'a mut CanonicalWriter,
    empty: bool,
    /// The end: of the array, and of the object around a variant.
    end: &'static str,
}

/// The fields of an object that is being written.
pub(super) struct ObjectWriter<'a, K> {
    writer: &'a mut CanonicalWriter,
    /// The key of each field and the place where its text begins, with a separator at its end.
    fields: Vec<(K, usize)>,
    end: &'static str,
}

impl CanonicalWriter {
    pub(super) fn write<T: Serialize + ?Sized>(value: &T, separators: Separators) -> Result<String> {
        let mut writer = Self::new(separators);
        value.serialize(&mut writer)?;
        Ok(writer.out)
    }

    pub(super) fn write_tree(value: &Value, separators: Separators) -> String {
        let mut writer = Self::new(separators);
        writer.tree(value);
        writer.out
    }

    fn new(separators: Separators) -> Self {
        Self {
            out: String::new(),
            separators,
            shown: String::new(),
        }
    }

    fn tree(&mut self, value: &Value) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(flag) => self.bool(*flag),
            Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => self.out.push_str(&python_float(float)),
                None => self.out.push_str(&number.to_string()),
            },
            Value::String(text) => write_string(&mut self.out, text),
            Value::Array(items) => {
                let mut array = self.array("]");
                for item in items {
                    array.begin_item().tree(item);
                }
                array.finish();
            }
            Value::Object(fields) => {
                let mut object = self.object(fields.len(), "}");
                for (key, item) in fields {
                    object.begin_field(key.as_str());
                    object.writer.tree(item);
                    object.end_field();
                }
                object.finish();
            }
        }
    }

    fn bool(&mut self, flag: bool) {
        self.out.push_str(if flag { "true" } else { "false" });
    }

    fn number(&mut self, number: impl fmt::Display) -> Result<()> {
        write!(self.out, "{number}").map_err(serde::ser::Error::custom)
    }

    fn begin_variant(&mut self, variant: &str) {
        self.out.push('{');
        write_string(&mut self.out, variant);
        self.out.push_str(self.separators.key);
    }

    fn array(&mut self, end: &'static str) -> ArrayWriter<'_> {
        self.out.push('[');
        ArrayWriter {
            writer: self,
            empty: true,
            end,
        }
    }

    fn object<K>(&mut self, length: usize, end: &'static str) -> ObjectWriter<'_, K> {
        self.out.push('{');
        ObjectWriter {
            writer: self,
            fields: Vec::with_capacity(length),
            end,
        }
    }
}

impl ArrayWriter<'_> {
    /// The place of the next item.
    fn begin_item(&mut self) -> &mut CanonicalWriter {
        if !self.empty {
            self.writer.out.push_str(self.writer.separators.item);
        }
        self.empty = false;
        self.writer
    }

    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        value.serialize(self.begin_item())
    }

    fn finish(self) {
        self.writer.out.push_str(self.end);
    }
}

impl<K: AsRef<str>> ObjectWriter<'_, K> {
    fn begin_field(&mut self, key: K) {
        let place = self.writer.out.len();
        write_string(&mut self.writer.out, key.as_ref());
        self.writer.out.push_str(self.writer.separators.key);
        self.fields.push((key, place));
    }

    fn end_field(&mut self) {
        self.writer.out.push_str(self.writer.separators.item);
    }

    fn field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        value.serialize(&mut *self.writer)?;
        self.end_field();
        Ok(())
    }

    fn finish(self) {
        let out = &mut self.writer.out;
        let sorted = self
            .fields
            .is_sorted_by(|(one, _), (other, _)| one.as_ref() < other.as_ref());
        if !sorted {
            sort_fields(out, &self.fields);
        }
        if !self.fields.is_empty() {
            // The last field has no other behind it.
            out.truncate(out.len().saturating_sub(self.writer.separators.item.len()));
        }
        out.push_str(self.end);
    }
}

/// Puts the last fields of a text in order. Of a repeated key, the last field counts.
fn sort_fields<K: AsRef<str>>(out: &mut String, fields: &[(K, usize)]) {
    let ends = fields.iter().skip(1).map(|(_, place)| *place).chain([out.len()]);
    let mut parts: Vec<_> = fields
        .iter()
        .zip(ends)
        .map(|((key, begin), end)| (key.as_ref(), *begin, end))
        .collect();
    parts.sort_by_key(|(key, _, _)| *key);
    let mut sorted = String::new();
    let mut later = parts.iter().skip(1).map(|(key, _, _)| *key);
    for (key, begin, end) in &parts {
        if later.next() != Some(*key) {
            sorted.push_str(out.get(*begin..*end).unwrap_or_default());
        }
    }
    if let Some((_, first)) = fields.first() {
        out.truncate(*first);
    }
    out.push_str(&sorted);
}

macro_rules! numbers {
    ($($name:ident: $type:ty),+) => {
        $(fn $name(self, value: $type) -> Result<()> { self.number(value) })+
    };
}

impl<'a> Serializer for &'a mut CanonicalWriter {
    type Ok = ();
    type Error = CanonicalError;
    type SerializeSeq = ArrayWriter<'a>;
    type SerializeTuple = ArrayWriter<'a>;
    type SerializeTupleStruct = ArrayWriter<'a>;
    type SerializeTupleVariant = ArrayWriter<'a>;
    type SerializeMap = ObjectWriter<'a, String>;
    type SerializeStruct = ObjectWriter<'a, &'static str>;
    type SerializeStructVariant = ObjectWriter<'a, &'static str>;

    numbers!(
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_u8: u8,
        serialize_u16: u16, serialize_u32: u32, serialize_u64: u64
    );

    fn serialize_bool(self, value: bool) -> Result<()> {
        self.bool(value);
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<()> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<()> {
        if value.is_finite() {
            self.out.push_str(&python_float(value));
            return Ok(());
        }
        self.serialize_unit()
    }

    fn serialize_char(self, value: char) -> Result<()> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<()> {
        write_string(&mut self.out, value);
        Ok(())
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result<()> {
        self.shown.clear();
        write!(self.shown, "{value}").map_err(serde::ser::Error::custom)?;
        write_string(&mut self.out, &self.shown);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<()> {
        let mut array = self.array("]");
        for byte in value {
            array.item(byte)?;
        }
        array.finish();
        Ok(())
    }

    fn serialize_none(self) -> Result<()> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<()> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<()> {
        self.out.push_str("null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<()> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<()> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<()> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<()> {
        self.begin_variant(variant);
        value.serialize(&mut *self)?;
        self.out.push('}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<ArrayWriter<'a>> {
        Ok(self.array("]"))
    }

    fn serialize_tuple(self, _: usize) -> Result<ArrayWriter<'a>> {
        Ok(self.array("]"))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<ArrayWriter<'a>> {
        Ok(self.array("]"))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<ArrayWriter<'a>> {
        self.begin_variant(variant);
        Ok(self.array("]}"))
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Self::SerializeMap> {
        Ok(self.object(length.unwrap_or(0), "}"))
    }

    fn serialize_struct(self, _: &'static str, length: usize) -> Result<Self::SerializeStruct> {
        Ok(self.object(length, "}"))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeStructVariant> {
        self.begin_variant(variant);
        Ok(self.object(length, "}}"))
    }
}

macro_rules! arrays {
    ($($shape:ident: $item:ident),+) => {
        $(impl $shape for ArrayWriter<'_> {
            type Ok = ();
            type Error = CanonicalError;

            fn $item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> { self.item(value) }

            fn end(self) -> Result<()> {
                self.finish();
                Ok(())
            }
        })+
    };
}

arrays!(
    SerializeSeq: serialize_element, SerializeTuple: serialize_element, SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
);

macro_rules! objects {
    ($($shape:ident),+) => {
        $(impl $shape for ObjectWriter<'_, &'static str> {
            type Ok = ();
            type Error = CanonicalError;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<()> {
                self.begin_field(key);
                self.field(value)
            }

            fn end(self) -> Result<()> {
                self.finish();
                Ok(())
            }
        })+
    };
}

objects!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for ObjectWriter<'_, String> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        self.begin_field(key.serialize(KeyText)?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.field(value)
    }

    fn end(self) -> Result<()> {
        self.finish();
        Ok(())
    }
}

/// Reads a map's key as its text.
struct KeyText;

macro_rules! key_texts {
    ($($name:ident: $type:ty),+) => {
        $(fn $name(self, value: $type) -> Result<String> { Ok(value.to_string()) })+
    };
}

impl Serializer for KeyText {
    type Ok = String;
    type Error = CanonicalError;
    type SerializeSeq = Impossible<String, CanonicalError>;
    type SerializeTuple = Impossible<String, CanonicalError>;
    type SerializeTupleStruct = Impossible<String, CanonicalError>;
    type SerializeTupleVariant = Impossible<String, CanonicalError>;
    type SerializeMap = Impossible<String, CanonicalError>;
    type SerializeStruct = Impossible<String, CanonicalError>;
    type SerializeStructVariant = Impossible<String, CanonicalError>;

    key_texts!(
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_char: char,
        serialize_str: &str
    );

    fn serialize_f32(self, _: f32) -> Result<String> {
        Err(no_key())
    }

    fn serialize_f64(self, _: f64) -> Result<String> {
        Err(no_key())
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<String> {
        Err(no_key())
    }

    fn serialize_none(self) -> Result<String> {
        Err(no_key())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<String> {
        Err(no_key())
    }

    fn serialize_unit(self) -> Result<String> {
        Err(no_key())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<String> {
        Err(no_key())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<String> {
        Ok(variant.to_owned())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<String> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<String> {
        Err(no_key())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq> {
        Err(no_key())
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple> {
        Err(no_key())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct> {
        Err(no_key())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant> {
        Err(no_key())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap> {
        Err(no_key())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct> {
        Err(no_key())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant> {
        Err(no_key())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use proptest::prelude::*;
    use serde::Serialize;
    use serde_json::json;

    use super::*;
    use crate::canonical::{sorted_compact, sorted_compact_of};

    #[derive(Serialize)]
    enum Shape {
        Point,
        Line(u8),
        Pair(u8, char),
        Named { z: Option<bool>, a: () },
    }

    #[derive(Serialize)]
    struct Everything<'a> {
        zeta: Vec<Shape>,
        alpha: BTreeMap<String, f64>,
        numbers: HashMap<i64, u64>,
        #[serde(flatten)]
        more: BTreeMap<&'a str, &'a str>,
        tuple: (i8, &'a str),
    }

    /// The way through a tree of values, whose bytes are those of Python's `json.dumps`.
    fn by_tree<T: Serialize>(value: &T) -> String {
        sorted_compact(&serde_json::to_value(value).unwrap())
    }

    #[test]
    fn every_shape_is_written_as_through_a_tree() {
        let shapes = vec![
            Shape::Point,
            Shape::Line(1),
            Shape::Pair(2, 'é'),
            Shape::Named { z: Some(true), a: () },
        ];
        let everything = Everything {
            zeta: shapes,
            alpha: [("b".into(), 1.5), ("a".into(), 1e300), ("c".into(), f64::NAN)].into(),
            numbers: [(10, u64::MAX), (9, 0), (-1, 7)].into(),
            more: [("é\n", "\u{7f}😀"), ("alpha2", ""), ("zz", "\"")].into(),
            tuple: (-3, ""),
        };
        let text = sorted_compact_of(&everything).unwrap();
        assert_eq!(text, by_tree(&everything));
        assert!(
            text.contains(r#""numbers":{"-1":7,"10":18446744073709551615,"9":0}"#),
            "{text}"
        );
        for empty in [json!({}), json!([]), json!(null), json!({"a": {}, "b": [[]]})] {
            assert_eq!(sorted_compact_of(&empty).unwrap(), by_tree(&empty));
        }
    }

    #[test]
    fn a_key_that_is_no_text_is_refused() {
        let map: BTreeMap<(u8, u8), u8> = [((1, 2), 3)].into();
        assert_eq!(sorted_compact_of(&map), Err(no_key()));
    }

    proptest! {
        #[test]
        fn texts_and_keys_are_written_as_through_a_tree(
            map in proptest::collection::hash_map(".{0,6}", proptest::collection::vec(".{0,9}", 0..4), 0..9), float: f64,
        ) {
            prop_assert_eq!(sorted_compact_of(&(&map, float)).unwrap(), by_tree(&(map, float)));
        }
    }
}
