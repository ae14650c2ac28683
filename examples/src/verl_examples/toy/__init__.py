"""`verl-ppo`: PPO and GRPO on a small transformer of its own, written to be read."""
