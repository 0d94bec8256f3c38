"""HTML pages about datasets: self-contained files, and a read-only server on this machine."""
