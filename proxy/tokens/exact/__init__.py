"""Exact counting: a model's own tokenizer and chat template, used as SGLang uses them."""
