"""The interface for a spider's author: spiders, requests, responses, settings."""
