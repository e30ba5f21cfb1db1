//! The known name that somebody who wrote an unknown one most likely meant.

/// None when all are too far off to be a slip.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().map(|known| (distance(name, known), *known));
    near.filter(|(steps, known)| *steps <= known.len().div_ceil(3)).min().map(|(_, known)| known)
}

/// How many letters have to be put in, taken out or replaced.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (number, letter) in one.chars().enumerate() {
        let mut diagonal = number;
        let mut left = number + 1;
        for (cell, &wanted) in row.iter_mut().skip(1).zip(&other) {
            let replaced = diagonal + usize::from(letter != wanted);
            diagonal = *cell;
            left = replaced.min(*cell + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = number + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted_in_letters() {
        for (one, other, steps) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("ab", "ba", 2),
            ("", "xy", 2),
        ] {
            assert_eq!(distance(one, other), steps, "{one} {other}");
            assert_eq!(distance(other, one), steps, "{other} {one}");
        }
    }

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let known = ["command", "decision", "expires", "env"];
        assert_eq!(nearest("comand", &known), Some("command"));
        assert_eq!(nearest("expire", &known), Some("expires"));
        assert_eq!(nearest("en", &known), Some("env"));
        assert_eq!(nearest("user", &known), None);
    }
}
