"""A run as a graph: nodes, edges, layout; as Mermaid and as SVG."""
