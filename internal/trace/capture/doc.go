// SPDX-License-Identifier: Apache-2.0

// Package capture reads and writes capture files: pcap and pcapng, as tcpdump and Wireshark
// write them. It is the only package that knows the library for these formats. What is in the
// packets is the subject of package decode.
//
// A file may come from anybody: a record that is longer than its file takes no memory, and a
// malformed file is an error. The package starts no goroutines and needs no privileges. A
// Reader and a Writer belong to one goroutine at a time.
package capture
