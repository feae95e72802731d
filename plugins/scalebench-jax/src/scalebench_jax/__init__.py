"""scalebench strategies that train with JAX: bare_jax and jax_data_parallel."""
