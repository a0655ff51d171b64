#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests of Twisted.
# trial.sh REACTOR MODULES [TEST...]: those tests, or else those of the modules.
set -eu
reactor=$1 modules=$2
shift 2
[ $# -gt 0 ] || read -ra modules <<<"$modules"
exec /usr/bin/python3 -m twisted.trial --reporter=bwverbose --reactor="$reactor" "${@:-${modules[@]}}"
