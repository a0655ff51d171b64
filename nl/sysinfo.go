// SPDX-License-Identifier: Apache-2.0

package nl

// A SysInfo is what an SMC stack is and what it can do.
type SysInfo struct {
	Version   uint8  // highest SMC version
	Release   uint8  // release of that version
	ISMv2     bool   // SMC-Dv2 is possible
	SMCRv2    bool   // SMC-Rv2 is possible
	LocalHost string // host name that peers are sent
	SEID      string // system enterprise ID, or ""

	// The fields below are set only by stacks in user space.

	Stack        string // name of the stack, such as "smcr"
	StackVersion string // its version
	PID          uint32 // its process
	UID          uint32 // the user of that process
	RoCEv1       bool   // its devices use RoCE version 1
	RoCEv2       bool   // its devices use RoCE version 2
	StateFile    string // file that saves what commands change, or "" if nothing is saved
	StateError   string // why nothing is saved
	// Problems are what keeps it from doing all that it could, each with its cure.
	Problems []string
	// NoWire is why it does not take the connections of programs at the devices of the host although it was to, or "".
	// It is one of Problems.
	NoWire string
	// ConfigFiles are the paths of the configuration files that the stack has read last, in their order, or the first 32 of them. A path
	// is cut after 256 bytes.
	ConfigFiles []string
}

// The limits of StateFile, StateError, NoWire and each of Problems and ConfigFiles, in bytes, and those of
// the numbers of Problems and ConfigFiles.
const (
	maxStateFile  = 4096
	maxStateError = 256
	maxProblem    = 512
	maxProblems   = 8

	maxConfigFile  = 256
	maxConfigFiles = 32
)

func (s *SysInfo) encode(ae *attrEncoder) {
	ae.Uint8(attrSysVer, s.Version)
	ae.Uint8(attrSysRel, s.Release)
	boolAttr(ae, attrSysISMv2, s.ISMv2)
	boolAttr(ae, attrSysSMCRv2, s.SMCRv2)
	padded(ae, attrSysLocalHost, s.LocalHost)
	if s.SEID != "" {
		padded(ae, attrSysSEID, s.SEID)
	}
	if s.Stack != "" {
		limited(ae, attrSysStack, s.Stack, 64)
		limited(ae, attrSysStackVersion, s.StackVersion, 64)
		ae.Uint32(attrSysPID, s.PID)
		ae.Uint32(attrSysUID, s.UID)
		var roce uint8
		if s.RoCEv1 {
			roce |= 1
		}
		if s.RoCEv2 {
			roce |= 2
		}
		ae.Uint8(attrSysRoCE, roce)
		if s.StateFile != "" {
			limited(ae, attrSysStateFile, s.StateFile, maxStateFile)
		}
		if s.StateError != "" {
			limited(ae, attrSysStateError, s.StateError, maxStateError)
		}
		for _, p := range s.Problems[:min(len(s.Problems), maxProblems)] {
			limited(ae, attrSysProblem, p, maxProblem)
		}
		if s.NoWire != "" {
			limited(ae, attrSysNoWire, s.NoWire, maxProblem)
		}
		for _, f := range s.ConfigFiles[:min(len(s.ConfigFiles), maxConfigFiles)] {
			limited(ae, attrSysConfigFile, f, maxConfigFile)
		}
	}
}

func (s *SysInfo) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrSysVer:
			s.Version = number8(ad)
		case attrSysRel:
			s.Release = number8(ad)
		case attrSysISMv2:
			s.ISMv2 = number(ad) != 0
		case attrSysSMCRv2:
			s.SMCRv2 = number(ad) != 0
		case attrSysLocalHost:
			s.LocalHost = text(ad)
		case attrSysSEID:
			s.SEID = text(ad)
		case attrSysStack:
			s.Stack = text(ad)
		case attrSysStackVersion:
			s.StackVersion = text(ad)
		case attrSysPID:
			s.PID = number32(ad)
		case attrSysUID:
			s.UID = number32(ad)
		case attrSysRoCE:
			roce := number8(ad)
			s.RoCEv1, s.RoCEv2 = roce&1 != 0, roce&2 != 0
		case attrSysStateFile:
			s.StateFile = text(ad)
		case attrSysStateError:
			s.StateError = text(ad)
		case attrSysProblem:
			if p := text(ad); len(s.Problems) < maxProblems {
				s.Problems = append(s.Problems, p)
			}
		case attrSysNoWire:
			s.NoWire = text(ad)
		case attrSysConfigFile:
			if f := text(ad); len(s.ConfigFiles) < maxConfigFiles {
				s.ConfigFiles = append(s.ConfigFiles, f)
			}
		}
	}
	return ad.Err()
}
