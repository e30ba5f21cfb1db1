//! Puts the members of an object into the places of a struct, as the original's library does it.

use crate::json::check::check_each;
use crate::json::read::{Mistyped, Text, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A place for a member's value. `null` leaves it as it was, unless it can be absent.
pub(crate) trait Place<'a> {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped>;
}

impl<'a> Place<'a> for Cow<'a, str> {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if !value.is_null() {
            *self = value.string()?;
        }
        Ok(())
    }
}

impl<'a> Place<'a> for Text<'a> {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if !value.is_null() {
            *self = value.text()?;
        }
        Ok(())
    }
}

impl<'a> Place<'a> for bool {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if !value.is_null() {
            *self = value.bool()?;
        }
        Ok(())
    }
}

impl<'a> Place<'a> for i64 {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if !value.is_null() {
            *self = value.integer()?;
        }
        Ok(())
    }
}

impl<'a> Place<'a> for Option<i64> {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        *self = if value.is_null() { None } else { Some(value.integer()?) };
        Ok(())
    }
}

impl<'a> Place<'a> for Option<bool> {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        *self = if value.is_null() { None } else { Some(value.bool()?) };
        Ok(())
    }
}

/// Any value at all, `null` too.
impl<'a> Place<'a> for Option<Value<'a>> {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        *self = Some(value);
        Ok(())
    }
}

impl<'a> Place<'a> for Vec<Cow<'a, str>> {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        self.clear();
        if value.is_null() {
            return Ok(());
        }
        for element in value.elements()? {
            let mut text = Cow::Borrowed("");
            text.put(element)?;
            self.push(text);
        }
        Ok(())
    }
}

/// An object of strings. A second one adds to the first.
impl<'a> Place<'a> for BTreeMap<Cow<'a, str>, Cow<'a, str>> {
    fn put(&mut self, value: Value<'a>) -> Result<(), Mistyped> {
        if value.is_null() {
            self.clear();
            return Ok(());
        }
        for (key, element) in value.members()? {
            let mut text = Cow::Borrowed("");
            text.put(element)?;
            self.insert(key.read(), text);
        }
        Ok(())
    }
}

/// Puts the members of an object into their places; those without a place are ignored. `null` is an object without
/// members.
pub(crate) fn fill<'a>(
    value: Value<'a>,
    places: &mut [(&'static str, &mut dyn Place<'a>)],
) -> Result<(), Mistyped> {
    if value.is_null() {
        return Ok(());
    }
    let mut outcome = Ok(());
    for (key, member) in value.members()? {
        outcome = outcome.and(put(places, key, member));
    }
    outcome
}

/// The same with a text that nobody has looked at yet; none when that is not well-formed. What is put is of no use then.
pub(crate) fn check_and_fill<'a>(
    text: &'a [u8],
    places: &mut [(&'static str, &mut dyn Place<'a>)],
) -> Option<Result<(), Mistyped>> {
    let mut outcome = Ok(());
    let value = check_each(text, |key, member| outcome = outcome.and(put(places, key, member)))?;
    Some(if value.is_null() { Ok(()) } else { outcome.and(value.members().map(|_| ())) })
}

/// Puts a member into its place, if it has one.
fn put<'a>(
    places: &mut [(&'static str, &mut dyn Place<'a>)],
    key: Text<'a>,
    member: Value<'a>,
) -> Result<(), Mistyped> {
    // Names that we know have nothing that would be escaped.
    let as_written = places.iter().position(|(name, _)| key.is_written(name));
    let place = as_written.or_else(|| {
        let key = key.read();
        let exact = places.iter().position(|(name, _)| *name == key);
        exact.or_else(|| places.iter().position(|(name, _)| same_but_for_case(name, &key)))
    });
    match place.and_then(|index| places.get_mut(index)) {
        Some((_, place)) => place.put(member),
        None => Ok(()),
    }
}

/// Names are ASCII; two letters outside it count as the same as one inside: K (Kelvin) and ſ (long s).
fn same_but_for_case(name: &str, key: &str) -> bool {
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
    use crate::json::check::check;

    #[test]
    fn a_key_matches_whatever_its_case_and_the_last_one_wins() {
        let mut id = Cow::Borrowed("");
        let mut number = 7i64;
        let text = br#"{"ID":"a","Id":"b","id":null,"NUMBER":1,"n\u0075mber":2,"other":[]}"#;
        fill(check(text).unwrap(), &mut [("id", &mut id), ("number", &mut number)]).unwrap();
        assert_eq!((id.as_ref(), number), ("b", 2));
        let mut kelvins = Cow::Borrowed("");
        fill(check("{\"\u{212a}elvin\u{17f}\":\"x\"}".as_bytes()).unwrap(), &mut [("kelvins", &mut kelvins)])
            .unwrap();
        assert_eq!(kelvins, "x");
    }

    #[test]
    fn a_wrong_type_is_found_and_does_not_hide_what_follows() {
        let mut id = Cow::Borrowed("");
        let mut number = 0i64;
        let outcome = fill(
            check(br#"{"number":1e3,"id":"seen"}"#).unwrap(),
            &mut [("id", &mut id), ("number", &mut number)],
        );
        assert_eq!((outcome, id.as_ref()), (Err(Mistyped), "seen"));
        for text in ["1.0", "\"1\"", "9223372036854775808", "true", "[]", "{}"] {
            let object = format!("{{\"number\":{text}}}");
            let mut number = 0i64;
            assert_eq!(
                fill(check(object.as_bytes()).unwrap(), &mut [("number", &mut number)]),
                Err(Mistyped),
                "{text}"
            );
        }
        let mut number = 5i64;
        fill(check(br#"{"number":-0}"#).unwrap(), &mut [("number", &mut number)]).unwrap();
        assert_eq!(number, 0);
    }

    #[test]
    fn lists_and_maps_take_null_as_empty() {
        let mut list: Vec<Cow<'_, str>> = vec!["before".into()];
        let mut map: BTreeMap<Cow<'_, str>, Cow<'_, str>> = BTreeMap::new();
        let text = br#"{"list":["a",null],"map":{"x":"1","y":null},"map":{"x":"2"}}"#;
        fill(check(text).unwrap(), &mut [("list", &mut list), ("map", &mut map)]).unwrap();
        assert_eq!(list, ["a", ""]);
        assert_eq!(map, BTreeMap::from([("y".into(), "".into()), ("x".into(), "2".into())]));
        assert_eq!(fill(check(br#"{"list":[1]}"#).unwrap(), &mut [("list", &mut list)]), Err(Mistyped));
    }
}
