"""Clusters as objects: of threads or processes on this machine, or on others."""
