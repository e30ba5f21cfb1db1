//! The machine-readable description of the interface: the OpenAPI document and the schema of events.

/// `GET /openapi.json`
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

/// `GET /events.schema.json`
pub(crate) const EVENTS: &str = include_str!("events.schema.json");

#[cfg(test)]
mod tests {
    #[test]
    fn both_documents_are_json() {
        for text in [super::DOCUMENT, super::EVENTS] {
            serde_json::from_str::<serde_json::Value>(text).unwrap();
        }
    }
}
