"""Types, protocols, cache, errors and the report. Imports nothing else of ours. Terms: docs/glossary.md."""
