#!/bin/sh
# Make FOLDER/ca.pem, and FOLDER/NAME.pem (key and certificate) for each server: ./make-certificates.sh FOLDER NAME...
# Members of a replica set recognise each other by O and OU of their certificates.
set -eu
folder=$1
shift
umask 077
mkdir -p "$folder"
authority=$folder/authority.key
[ -e "$authority" ] || openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -sha256 \
    -subj "/O=crawlcw/OU=authority/CN=crawlcw ledger" -keyout "$authority" -out "$folder/ca.pem" 2>/dev/null
for name in "$@"; do
    made=$(mktemp -d)
    openssl req -newkey rsa:3072 -nodes -sha256 -subj "/O=crawlcw/OU=ledger/CN=$name" \
        -keyout "$made/key" -out "$made/request" 2>/dev/null
    printf 'subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' "$name" > "$made/extensions"
    openssl x509 -req -in "$made/request" -CA "$folder/ca.pem" -CAkey "$authority" -CAcreateserial \
        -days 825 -sha256 -extfile "$made/extensions" -out "$made/certificate" 2>/dev/null
    cat "$made/key" "$made/certificate" > "$folder/$name.pem"
    rm -r "$made"
done
# Other users in the containers must read the certificates; the authority's key stays private.
chmod 755 "$folder"
chmod 644 "$folder"/*.pem
