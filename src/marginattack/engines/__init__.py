"""How the shards of a run are executed; what a shard is and how it is committed is not theirs to say."""
