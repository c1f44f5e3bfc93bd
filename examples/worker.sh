#!/bin/sh
# A worker in shell, with curl: it counts the words of texts.
#
#     sh examples/worker.sh [URL]
#
# URL is the address that `crawlcw serve` prints; the worker ends when no task is
# left. Without URL, the script starts a server of its own in a temporary folder,
# with some texts. Needs curl, and python3 to read and write JSON.
set -eu

worker="shell-$$"

# ask PATH JSON: post JSON and print the answer. Repeating a request is safe, so curl may retry.
ask() {
    curl --silent --show-error --fail-with-body --retry 3 \
        --header 'Content-Type: application/json' --data "$2" "$server$1"
}

# json NAME=TEXT NAME:=NUMBER ...: print an object.
json() {
    python3 -c 'import json, sys
pairs = (each.split("=", 1) for each in sys.argv[1:])
print(json.dumps({n.rstrip(":"): int(v) if n.endswith(":") else v for n, v in pairs}))' "$@"
}

# Read held tasks as JSON; print them as assignments, quoted for the shell.
assignments() {
    python3 -c 'import json, shlex, sys
for task in json.load(sys.stdin)["tasks"]:
    found = {"key": task["key"], "fence": str(task["fence"]), "text": task["data"]["text"]}
    print("; ".join(f"{name}={shlex.quote(value)}" for name, value in found.items()))'
}

work() {
    while :; do
        task=$(ask /claim_task "$(json worker="$worker" limit:=1)" | assignments)
        [ -n "$task" ] || return 0
        eval "$task"
        words=$(printf %s "$text" | wc -w)
        if [ "$words" -gt 0 ]; then
            set -- status=finished result:="$words"
        else
            set -- status=ignored error="no words"
        fi
        outcome=$(json worker="$worker" key="$key" fence:="$fence" "$@")
        # The server refuses it if this worker was too slow and another one has the task now.
        ask /end_task "$outcome" >/dev/null && echo "$key: $words words" || echo "$key is lost"
    done
}

if [ $# -gt 0 ]; then
    server=$1
    work
    exit
fi

folder=$(mktemp -d)
python3 -m crawlcw serve texts --ledger "sqlite:///$folder/ledger.db" --port 0 >"$folder/said" &
trap 'kill $!; wait $!; rm -r "$folder"' EXIT
until server=$(grep -o 'http://[^ ]*' "$folder/said" | head -1) && [ -n "$server" ]; do
    kill -0 $! # it still runs
    sleep 0.1
done
ask /create_task '{"tasks": [
    {"key": "a haiku", "data": {"text": "An old silent pond / a frog jumps in / splash"}},
    {"key": "nothing", "data": {"text": ""}},
    {"key": "a \"question\"", "data": {"text": "$(date) or not?"}}]}'
echo
work
curl --silent "$server/stats"
echo
