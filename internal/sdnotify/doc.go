// SPDX-License-Identifier: Apache-2.0

// Package sdnotify reports the state of a service to the service manager, as sd_notify(3)
// of systemd does: datagrams with lines of text to the socket that NOTIFY_SOCKET names. It
// knows the protocol, and not what the states of a service are.
package sdnotify
