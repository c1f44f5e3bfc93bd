"""What a spider's author writes against: spiders, requests, responses, settings."""
