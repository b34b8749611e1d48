#!/bin/sh
# Puts real secrets in the place of the placeholders in `secrets/`. Run it in a copy of this folder that you keep out of
# version control; it makes them once, and changes nothing where they are.
set -eu
umask 077
cd "$(dirname "$0")/secrets"
# The placeholders came with the mode of a checkout, and a file keeps its own.
chmod 600 ./*
grep -q PLACEHOLDER keyring || { echo "secrets/ has real secrets already" >&2; exit 1; }

NAME=sluicegate-control-plane
password=$(openssl rand -hex 24)
printf 'DATABASE_URL=postgres://sluicegate:%s@postgres/sluicegate\nPOSTGRES_PASSWORD=%s\n' "$password" "$password" > database.env
printf 'SLUICEGATE_ADMIN_TOKEN=%s\n' "$(openssl rand -hex 32)" > admin.env
printf 'SLUICEGATE_NODE_TOKEN=sgn-%s\nSLUICEGATE_SEAL_KEY=%s\n' "$(openssl rand -hex 32)" "$(openssl rand -hex 32)" > node.env
printf 'OPENAI_API_KEY=%s\n' "${OPENAI_API_KEY:-}" > providers.env

# An authority that signs one certificate and is forgotten: its key is never written beside it.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=Sluicegate authority" \
  -addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign \
  -keyout "$work/ca.key" -out ca.crt 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$NAME" \
  -keyout tls.key -out "$work/tls.csr" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
cat > "$work/extensions" <<EOF
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:$NAME, DNS:localhost, IP:127.0.0.1
EOF
openssl x509 -req -in "$work/tls.csr" -CA ca.crt -CAkey "$work/ca.key" -CAcreateserial -CAserial "$work/serial" \
  -days 3650 -extfile "$work/extensions" -out tls.crt 2> "$work/log" || { cat "$work/log" >&2; exit 1; }

# Last: it says that all is done.
printf 'sluicegate-keyring v1\n%s %s\n' "$(openssl rand -hex 4)" "$(openssl rand -hex 32)" > keyring
echo "secrets/ is filled; keep a copy of secrets/keyring: without it no stored secret can be read" >&2
