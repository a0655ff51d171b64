// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"smcr/internal/cmdutil"
	"smcr/internal/sysfs"

	"github.com/spf13/cobra"
)

// All returns the commands of this package, to be added to the command smcr.
func All(f *cmdutil.Factory) []*cobra.Command {
	return []*cobra.Command{
		newApply(f, nil),
		newAttach(f),
		newConnection(f),
		newDetach(f),
		newDevice(f),
		newExplain(f, nil),
		newExport(f),
		newHSLimit(f),
		newInfo(f),
		newLink(f),
		newLinkGroup(f),
		newPNET(f),
		newProgram(f),
		newRNICs(f, sysfs.New(sysfs.DefaultRoot)),
		newSEID(f),
		newStats(f),
		newTopology(f),
		newUEID(f),
	}
}
