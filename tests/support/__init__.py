"""What tests share: servers, processes, ledgers, clocks."""
