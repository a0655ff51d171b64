// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"testing"
)

func TestParseListen(t *testing.T) {
	for text, want := range map[string]string{
		"Listen=[::]:22 (Stream)\nListen=0.0.0.0:22 (Stream)\nLoadState=loaded\n": "[[::]:22 0.0.0.0:22]",
		"Listen=[fe80::1%eth0]:80 (Stream)\n":                                     "[[fe80::1%eth0]:80]",
		"Listen=/run/x.sock (Stream)\nListen=@x (Stream)\n":                       "[]",
		"Listen=0.0.0.0:53 (Datagram)\nListen=0.0.0.0:53 (Stream)\n":              "[0.0.0.0:53]",
		"Listen=0.0.0.0:53 (Datagram)\n":                                          "[]",
		"Listen=\n":                                                               "[]",
		"":                                                                        "[]",
	} {
		if got := fmt.Sprint(parseListen(text)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
