"""Resolvers: each reads the cluster from what one engine, such as Slurm or Kubernetes, tells its processes."""
