"""Algorithm 2: a gallery indexed once by φ_k, searched with φ_t, t > k, without indexing it again."""
