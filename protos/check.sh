#!/bin/sh
# Lints the contract, and compares it with the newest released one (or, before the first release, with the first commit that had
# it) so that no change breaks a client. BUF names the buf program.
set -eu
cd "$(dirname "$0")"
buf="${BUF:-buf}"
"$buf" lint
against=$(git tag --list 'v*' --merged HEAD --sort=-v:refname | head -n 1)
[ -n "$against" ] || against=$(git log --format=%H --reverse -- buf.yaml | head -n 1)
if [ -z "$against" ]; then
    echo "the contract is not committed yet: nothing to compare it with"
    exit 0
fi
"$buf" breaking --against "../.git#ref=$against,subdir=protos"
echo "the contract is clean, and compatible with $against"
