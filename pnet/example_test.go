// SPDX-License-Identifier: Apache-2.0

package pnet_test

import (
	"errors"
	"fmt"
	"log"
	"os"

	"smcr/pnet"
)

// A host has its addresses on eth0 and its RoCE card on eth1, in one network: the
// same pnetid on both makes the card serve the connections of eth0.
func ExampleTable_Match() {
	var t pnet.Table
	for _, e := range []pnet.Entry{
		{ID: "NET1", NetDev: "eth0"},
		{ID: "NET1", IBDev: "mlx5_0", IBPort: 1},
	} {
		if err := t.Add(e); err != nil {
			log.Fatal(err)
		}
	}
	ports := []pnet.Port{
		{Device: "mlx5_0", Port: 1, NetDev: "eth1", Active: true},
		{Device: "mlx5_1", Port: 1, NetDev: "eth2", Active: true},
	}
	serve, id := t.Match(pnet.NetDev{Name: "eth0"}, ports)
	for _, p := range serve {
		fmt.Printf("%s port %d serves eth0: both are in %s\n", p.Device, p.Port, id)
	}
	// A VLAN has the pnetid of the device beneath it.
	fmt.Println(t.ID(pnet.NetDev{Name: "eth0.7", Lower: []string{"eth0"}}))
	// Output:
	// mlx5_0 port 1 serves eth0: both are in NET1
	// NET1
}

// An addition is stored whole or not at all, and the error says which rule it
// breaks.
func ExampleTable_Add() {
	var t pnet.Table
	fmt.Println(t.Add(pnet.Entry{ID: " net1 ", NetDev: "eth0"}))
	fmt.Println(errors.Is(t.Add(pnet.Entry{ID: "NET2", NetDev: "eth0"}), os.ErrExist))
	var invalid *pnet.InvalidError
	fmt.Println(errors.As(t.Add(pnet.Entry{ID: "NET-3", NetDev: "eth1"}), &invalid))
	fmt.Println(t.Entries())
	// Output:
	// <nil>
	// true
	// true
	// [{NET1 eth0  0}]
}
