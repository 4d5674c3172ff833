"""Training drafts: features captured from a target's runtime, and one loop that minimises a drafter's own loss."""
