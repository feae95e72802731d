"""A comparison shown: as text, JSON, JUnit and Markdown, and as charts."""
