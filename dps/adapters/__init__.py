"""Adapters of other libraries to sessions. Each needs its library, and uses only public names of dps."""
