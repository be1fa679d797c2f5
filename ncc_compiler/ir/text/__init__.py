"""Between text and graph: literals, layouts, headers, shorthand spelt out; the printer."""
