//! The words that write of processes as people.

/// Words with which prose turns a process into a person, in lower case.
const PERSONIFYING: &[&str] = &[
    "anybody",
    "anyone",
    "everybody",
    "everyone",
    "hear",
    "heard",
    "hearing",
    "hears",
    "mend",
    "mended",
    "mending",
    "mends",
    "nobody",
    "said",
    "say",
    "saying",
    "says",
    "somebody",
    "someone",
    "stranger",
    "strangers",
    "tell",
    "telling",
    "tells",
    "told",
    "unsaid",
    "untold",
    "who",
    "whoever",
    "whom",
    "whomever",
];

/// Nouns for people; "who" may follow them.
const PEOPLE: &[&str] = &[
    "administrator",
    "administrators",
    "approver",
    "approvers",
    "attacker",
    "attackers",
    "developer",
    "developers",
    "human",
    "humans",
    "newcomer",
    "newcomers",
    "operator",
    "operators",
    "people",
    "person",
    "reader",
    "readers",
    "reviewer",
    "reviewers",
    "team",
    "teams",
    "user",
    "users",
];

/// The first personifying word of `text` and its offset in bytes.
pub fn personified(text: &str) -> Option<(usize, &str)> {
    let mut previous = String::new();
    for (offset, word) in words(text) {
        let lower = word.to_ascii_lowercase();
        let of_people = lower == "who" && PEOPLE.contains(&previous.as_str());
        if PERSONIFYING.contains(&lower.as_str()) && !of_people {
            return Some((offset, word));
        }
        previous = lower;
    }
    None
}

/// Words of letters, digits and underscores. Parts of an identifier are not words, except in names of functions, which
/// the caller splits.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    text.split(move |character| !is_word(character)).filter(|word| !word.is_empty()).map(move |word| {
        let offset = word.as_ptr().addr() - text.as_ptr().addr();
        (offset, word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listed_word_is_found_in_any_case() {
        for word in PERSONIFYING {
            let text = format!("// The worker, {} so.", word.to_uppercase());
            assert_eq!(personified(&text).map(|(_, found)| found.to_lowercase()).as_deref(), Some(*word));
        }
    }

    #[test]
    fn who_may_follow_a_noun_for_people_only() {
        assert_eq!(personified("a user who approves"), None);
        assert_eq!(personified("a worker who waits"), Some((9, "who")));
    }

    #[test]
    fn parts_of_identifiers_and_longer_words_are_no_findings() {
        assert_eq!(personified("who_waits storyteller essay `say_so`"), None);
    }
}
