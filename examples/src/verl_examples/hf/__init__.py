"""`verl-grpo`: GRPO and PPO on causal language models of Hugging Face."""
