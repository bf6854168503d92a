"""The whole main job on the built-in corpus: minutes on two cores, no network."""
