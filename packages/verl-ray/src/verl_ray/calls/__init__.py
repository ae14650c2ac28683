"""Answers to come."""
