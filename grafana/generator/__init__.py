"""The dashboards as code: all panels look and read alike, and every one says what to do when it looks bad."""
