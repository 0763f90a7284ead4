"""`sglang-admission-proxy doctor`: asks the servers, and says what is wrong, missing or better set."""
