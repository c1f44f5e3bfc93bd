"""The way of a request to the server: layers, proxies, connections and cookies."""
