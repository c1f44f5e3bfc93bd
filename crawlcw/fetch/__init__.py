"""Send requests to servers through layers and proxies, with connections and cookies."""
