//! Decodes the members of an object into fields, as Go's `json.Unmarshal` does.

use crate::go_json::read::{Mistyped, Text, Value};
use crate::go_json::validate::validate_members;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A target of a member's value. `null` resets an optional field or a collection and leaves other fields unchanged.
pub(crate) trait Field<'a> {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped>;
}

impl<'a> Field<'a> for Cow<'a, str> {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if !value.is_null() {
            *self = value.string()?;
        }
        Ok(())
    }
}

impl<'a> Field<'a> for Text<'a> {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if !value.is_null() {
            *self = value.text()?;
        }
        Ok(())
    }
}

impl<'a> Field<'a> for bool {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if !value.is_null() {
            *self = value.bool()?;
        }
        Ok(())
    }
}

impl<'a> Field<'a> for i64 {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if !value.is_null() {
            *self = value.integer()?;
        }
        Ok(())
    }
}

impl<'a> Field<'a> for Option<i64> {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        *self = if value.is_null() { None } else { Some(value.integer()?) };
        Ok(())
    }
}

impl<'a> Field<'a> for Option<bool> {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        *self = if value.is_null() { None } else { Some(value.bool()?) };
        Ok(())
    }
}

/// Accepts every value, also `null`.
impl<'a> Field<'a> for Option<Value<'a>> {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        *self = Some(value);
        Ok(())
    }
}

impl<'a> Field<'a> for Vec<Cow<'a, str>> {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        self.clear();
        if value.is_null() {
            return Ok(());
        }
        for element in value.elements()? {
            let mut text = Cow::Borrowed("");
            text.set(element)?;
            self.push(text);
        }
        Ok(())
    }
}

/// An object of strings. A duplicate member adds to the map, as in Go.
impl<'a> Field<'a> for BTreeMap<Cow<'a, str>, Cow<'a, str>> {
    fn set(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if value.is_null() {
            self.clear();
            return Ok(());
        }
        for (key, element) in value.members()? {
            let mut text = Cow::Borrowed("");
            text.set(element)?;
            self.insert(key.decode(), text);
        }
        Ok(())
    }
}

/// Decodes the members of an object into `fields` and ignores unknown members. `null` counts as an empty object.
pub(crate) fn unmarshal<'a>(
    value: Value<'a>,
    fields: &mut [(&'static str, &mut dyn Field<'a>)],
) -> Result<(), Mistyped> {
    if value.is_null() {
        return Ok(());
    }
    let mut outcome = Ok(());
    for (key, member) in value.members()? {
        outcome = outcome.and(set_field(fields, key, member));
    }
    outcome
}

/// Validates `text` and decodes it in one pass. `None` means malformed text; the fields are then unspecified.
pub(crate) fn validate_and_unmarshal<'a>(
    text: &'a [u8],
    fields: &mut [(&'static str, &mut dyn Field<'a>)],
) -> Option<Result<(), Mistyped>> {
    let mut outcome = Ok(());
    let value = validate_members(text, |key, member| outcome = outcome.and(set_field(fields, key, member)))?;
    Some(if value.is_null() { Ok(()) } else { outcome.and(value.members().map(|_| ())) })
}

/// An exact match of the name wins over a case-insensitive one.
fn set_field<'a>(
    fields: &mut [(&'static str, &mut dyn Field<'a>)],
    key: Text<'a>,
    member: Value<'a>,
) -> Result<(), Mistyped> {
    // Fast path: clients do not escape the names of the contract.
    let unescaped = fields.iter().position(|(name, _)| key.source_equals(name));
    let index = unescaped.or_else(|| {
        let key = key.decode();
        let exact = fields.iter().position(|(name, _)| *name == key);
        exact.or_else(|| fields.iter().position(|(name, _)| eq_fold(name, &key)))
    });
    match index.and_then(|index| fields.get_mut(index)) {
        Some((_, field)) => field.set(member),
        None => Ok(()),
    }
}

/// Go's case folding for ASCII names: it maps two non-ASCII letters to ASCII, K (Kelvin sign) and ſ (long s).
fn eq_fold(name: &str, key: &str) -> bool {
    let fold = |letter: char| match letter {
        '\u{212a}' => 'k',
        '\u{17f}' => 's',
        _ => letter.to_ascii_lowercase(),
    };
    name.chars().map(fold).eq(key.chars().map(fold))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::go_json::validate::validate;

    #[test]
    fn keys_match_case_insensitively_and_the_last_duplicate_wins() {
        let mut id = Cow::Borrowed("");
        let mut number = 7i64;
        let text = br#"{"ID":"a","Id":"b","id":null,"NUMBER":1,"n\u0075mber":2,"other":[]}"#;
        unmarshal(validate(text).unwrap(), &mut [("id", &mut id), ("number", &mut number)]).unwrap();
        assert_eq!((id.as_ref(), number), ("b", 2));
        let mut kelvins = Cow::Borrowed("");
        unmarshal(
            validate("{\"\u{212a}elvin\u{17f}\":\"x\"}".as_bytes()).unwrap(),
            &mut [("kelvins", &mut kelvins)],
        )
        .unwrap();
        assert_eq!(kelvins, "x");
    }

    #[test]
    fn a_wrong_type_is_an_error_and_later_members_are_still_decoded() {
        let mut id = Cow::Borrowed("");
        let mut number = 0i64;
        let outcome = unmarshal(
            validate(br#"{"number":1e3,"id":"seen"}"#).unwrap(),
            &mut [("id", &mut id), ("number", &mut number)],
        );
        assert_eq!((outcome, id.as_ref()), (Err(Mistyped), "seen"));
        for text in ["1.0", "\"1\"", "9223372036854775808", "true", "[]", "{}"] {
            let object = format!("{{\"number\":{text}}}");
            let mut number = 0i64;
            assert_eq!(
                unmarshal(validate(object.as_bytes()).unwrap(), &mut [("number", &mut number)]),
                Err(Mistyped),
                "{text}"
            );
        }
        let mut number = 5i64;
        unmarshal(validate(br#"{"number":-0}"#).unwrap(), &mut [("number", &mut number)]).unwrap();
        assert_eq!(number, 0);
    }

    #[test]
    fn null_empties_lists_and_maps() {
        let mut list: Vec<Cow<'_, str>> = vec!["before".into()];
        let mut map: BTreeMap<Cow<'_, str>, Cow<'_, str>> = BTreeMap::new();
        let text = br#"{"list":["a",null],"map":{"x":"1","y":null},"map":{"x":"2"}}"#;
        unmarshal(validate(text).unwrap(), &mut [("list", &mut list), ("map", &mut map)]).unwrap();
        assert_eq!(list, ["a", ""]);
        assert_eq!(map, BTreeMap::from([("y".into(), "".into()), ("x".into(), "2".into())]));
        assert_eq!(
            unmarshal(validate(br#"{"list":[1]}"#).unwrap(), &mut [("list", &mut list)]),
            Err(Mistyped)
        );
    }
}
