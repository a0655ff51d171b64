// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"testing"

	"smcr/internal/testing/cmdtest"
	"smcr/nl"
)

func TestPNETFlags(t *testing.T) {
	cmdtest.Flags[pnetAddOptions]{
		New: newPNETAdd,
		Good: map[string]func(*pnetAddOptions) bool{
			"net1 -I eth0":        func(o *pnetAddOptions) bool { return o.entry == nl.PNET{ID: "NET1", NetDev: "eth0", IBPort: 1} },
			"NET1 -D mlx5_0 -P 2": func(o *pnetAddOptions) bool { return o.entry == nl.PNET{ID: "NET1", IBDev: "mlx5_0", IBPort: 2} },
			"NET1 --netdev eth0 --ibdev mlx5_0": func(o *pnetAddOptions) bool {
				return o.entry == nl.PNET{ID: "NET1", NetDev: "eth0", IBDev: "mlx5_0", IBPort: 1}
			},
		},
		Bad: []string{"", "NET1", "NET1 NET2 -I eth0", "NET1 -I eth0 -P 1", "NET1 -D x -P 0", "NET1 -D x -P 300", "A-B -I eth0", "12345678901234567 -I eth0"},
	}.Run(t)
}
