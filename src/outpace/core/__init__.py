"""The nouns: types, protocols, cache, errors and the report. Imports nothing else of ours."""
