"""mk in other projects' places for such things. Each module imports its project: docs/integrations.md."""
