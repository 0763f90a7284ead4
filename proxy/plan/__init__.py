"""`sglang-admission-proxy plan`: traffic replayed in virtual time against given limits."""
