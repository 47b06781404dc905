"""Causal language models of Hugging Face behind one adapter, and a model of integers for tests."""
