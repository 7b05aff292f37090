package clickhouse

import (
	"context"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

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

// InsertPackets inserts a batch as the sink does, packet rows at a time.
func (b *Batch) InsertPackets(ctx context.Context, conn driver.Conn, token string, packet int) error {
	for _, t := range b.allTables() {
		if err := t.insert(insertContext(ctx, token), conn, t.name, packet); err != nil {
			return err
		}
	}
	return nil
}

// InsertContext carries the settings of an insert.
func InsertContext(ctx context.Context, token string) context.Context {
	return insertContext(ctx, token)
}
