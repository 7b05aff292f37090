package clickhouse

// SetFault puts f at each step of each batch: what it returns ends the batch there, as a crash would.
func (s *Sink) SetFault(f func(step string) error) { s.fault = f }

// KindTables names the kinds that have a table.
func KindTables() map[string]string {
	m := map[string]string{}
	for _, k := range kindTables {
		m[k.kind] = k.table
	}
	return m
}
